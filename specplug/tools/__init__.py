"""What people run beside an engine, which imports none of it: the command line, audits, benchmarks, forecasts, replays.

cli        the commands of `specplug`: their arguments, tables and pages
client     requests to a running server, and the figures that it publishes
audit      checks that speculation leaves an engine's output as it is
bench      the gain that speculation gives a running server
forecast   the gain to expect from a device's and a model's figures
replay     drafts of recorded texts, without an engine
demo       small models and tasks to try specplug with
"""
