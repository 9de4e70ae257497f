"""What tests run in processes of their own, by :mod:`tests.worker`."""
