import enum

from torchvision import missing_of


class InterpolationMode(enum.Enum):
    """Used as keys when transformers is imported."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


__getattr__ = missing_of(__name__)

from torchvision.transforms import functional, v2  # noqa: E402

__all__ = ["InterpolationMode", "functional", "v2"]
