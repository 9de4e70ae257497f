"""What stands in for Ray where only hosts are wanted does what Ray does with them."""

import gc
import uuid
from types import SimpleNamespace

import pytest

from privbo_plugins.errors import VaultError
from raytune_searchers._channel import LOSSES, channel_of_trial
from raytune_searchers.hosts.actors import ActorHandle, anchor, connect, forgotten
from raytune_searchers.hosts.base import Host, by_name
from tests.raytune_searchers.hosts import crash as crash_here
from tests.raytune_searchers.scenes import kill_vault


def counting(*, kept=True):
    """A host that counts in memory; by value, so that its process imports no tests."""

    def add(host):
        host.session[0] += 1
        return host.session[0]

    own = {"missing": LOSSES, "operations": Host.operations | by_name("join add"), "kept": kept}
    does = {"open": lambda _: [0], "join": lambda *_: ("vault", ()), "add": add}
    return type("Counting", (Host,), own | does)


def name_of(what):
    return f"{what}/{uuid.uuid4().hex}"


def way(own, url):
    settings = SimpleNamespace(run="r", vault_id=None)
    return connect(own, settings, url)[0]


def call_again_and_again(channel):
    for _ in range(10_000):  # Ray ends an actor a little later
        channel.call("add")


class Contract:
    """What is expected of either Ray; ``crash`` kills a host's process."""

    def test_a_host_in_memory_is_begun_once_and_lost_with_its_process(self, crash):
        kind, name = counting(), name_of("memory")
        own = ActorHandle(name, kind, True, None)
        driver, trial = way(own, None), channel_of_trial(name)
        assert [driver.call("add"), trial.call("add")] == [1, 2]
        assert way(ActorHandle(name, kind, False, None), None).call("add") == 3
        with pytest.raises(VaultError, match="alive in this cluster"):
            way(ActorHandle(name, kind, True, None), None)
        crash(name)
        for lost in (driver, trial):
            with pytest.raises(VaultError, match="The vault of this run is gone"):
                lost.call("add")

    def test_a_host_in_memory_is_kept_until_it_is_closed(self, crash):
        kind, name = counting(), name_of("memory")
        own = anchor(name, kind, may_begin=True)
        assert way(own, None).call("add") == 1
        del own
        gc.collect()
        assert name in forgotten()
        again = anchor(name, kind)
        assert name not in forgotten()
        assert way(again, None).call("add") == 2
        again.end()
        with pytest.raises(VaultError):
            call_again_and_again(channel_of_trial(name))

    def test_a_host_that_is_not_kept_ends_with_whoever_began_it(self, crash):
        kind, name = counting(kept=False), name_of("memory")
        own = ActorHandle(name, kind, True, None)
        assert way(own, None).call("add") == 1
        del own
        gc.collect()
        with pytest.raises(VaultError):
            call_again_and_again(channel_of_trial(name))

    def test_a_host_with_a_database_is_begun_again(self, crash):
        kind, name, url = counting(), name_of("durable"), "sqlite:////nowhere.db"
        own = ActorHandle(name, kind, True, None)
        driver = way(own, url)
        assert driver.call("add") == 1
        assert way(ActorHandle(name, kind, True, None), url).call("add") == 2  # they share it
        crash(name)
        assert driver.call("add") == 1
        own.end()
        assert driver.call("add") == 1
        own.end()


class TestInThisProcess(Contract):
    @pytest.fixture
    def crash(self, local_hosts):
        return crash_here


@pytest.mark.slow
class TestInRay(Contract):
    @pytest.fixture
    def crash(self, the_ray):
        return kill_vault
