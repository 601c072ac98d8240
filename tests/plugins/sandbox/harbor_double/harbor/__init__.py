"""The part of harbor 0.26 that the service `remote` uses, for interpreters that it does not run on.

Its one environment is a folder of this machine, whose commands run as root without any wall: the
programs are those of the tests. `test_remote.py` runs the same on harbor itself where it is
installed.
"""
