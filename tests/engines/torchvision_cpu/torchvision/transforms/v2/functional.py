from torchvision import missing_of
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode"]

__getattr__ = missing_of(__name__)
