from torchvision import missing_of

__getattr__ = missing_of(__name__)
