from torchvision import missing_of
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

__all__ = ["InterpolationMode", "functional"]

__getattr__ = missing_of(__name__)
