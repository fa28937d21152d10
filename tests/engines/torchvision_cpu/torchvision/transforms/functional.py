from torchvision import missing_of
from torchvision.transforms import InterpolationMode

pil_modes_mapping = {mode: number for number, mode in enumerate(InterpolationMode)}  # read, never used

__getattr__ = missing_of(__name__)
