"""What is public does not depend on one record: every system, twice, on neighbouring data.

Both runs get the same releases, because their noise source ignores what it is given and returns a
fixed public sequence, and the same entropy otherwise. Then everything that anybody outside can
see must be equal, byte for byte: ``sealed`` makes the runs equal, ``seen`` gathers what they
leave, ``zoo`` holds the odd records, and ``runs`` the systems.
"""
