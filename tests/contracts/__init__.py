"""What every algorithm, sampler and searcher must fulfil; other folders hold what differs.

``algorithm`` is the engine's ask and tell, ``adapter`` what a host asks of samplers and searchers,
``leaks`` what may be seen of secrets, ``faults`` what a crash, a retry or a restored file may
change, ``guarantee`` what is claimed, ``settings`` and ``verbs`` what users type. Each runs over a
table: the engine's registry, the systems of ``tests/systems.py``, or the classes of a host.
"""
