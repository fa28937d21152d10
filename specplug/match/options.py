"""The settings of lookup, until the match index is gone."""

from specplug.lookup.options import LookupSettings as LookupSettings
