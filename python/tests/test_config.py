"""Settings from the environment."""

import pytest

from netsum.config import SettingError, Settings


def test_nothing_set_means_host_path():
    assert Settings.from_environment({}) == Settings()


def test_all_settings():
    found = Settings.from_environment(
        {
            "NETSUM_CONTROLLER": "127.77.0.1:7700",
            "NETSUM_HOST": "h2",
            "NETSUM_PROTOCOL": "panama",
            "NETSUM_COLLECTIVES": "all",
            "NETSUM_MAX_TREES": "2",
            "NETSUM_RELEASE_FRACTION": "0.5",
            "NETSUM_CONGESTION": "per-branch",
            "NETSUM_MIN_BYTES": "0",
            "NETSUM_CREDENTIALS": "/etc/netsum",
            "NETSUM_TORCH_SHAPE": "backend",
        }
    )
    assert (found.controller, found.host, found.torch_shape) == ("127.77.0.1:7700", "h2", "backend")
    assert found.options == {
        "protocol": "panama",
        "collectives": "all",
        "max_trees": "2",
        "release_fraction": "0.5",
        "congestion": "per-branch",
        "min_bytes": "0",
        "credentials": "/etc/netsum",
    }
    without = found.host_path_only()
    assert (without.controller, without.host, without.options) == (None, None, found.options)


def test_an_address_of_this_machine_is_kept_where_there_is_no_fabric():
    assert Settings.from_environment({"NETSUM_HOST": "127.0.0.2"}).host_path_only().host == "127.0.0.2"


def test_controllers_are_separated_by_commas():
    several = "127.77.0.1:7700, 127.77.0.2:7700"
    assert Settings.from_environment({"NETSUM_CONTROLLER": several}).controller == several


def test_one_thing_alone_says_how_sums_of_the_world_go():
    ways = {"NETSUM_PLAN": "plan.json", "NETSUM_INTERFACES": "eth0,eth1", "NETSUM_CONTROLLER": "127.0.0.1:7700"}
    for left_out in ways:
        both = {name: value for name, value in ways.items() if name != left_out}
        with pytest.raises(SettingError, match=" and ".join(both)):
            Settings.from_environment(both)
    found = Settings.from_environment({"NETSUM_INTERFACES": "eth0,eth1"})
    assert found.names_plan and found.with_plan(None).options == {"interfaces": "eth0,eth1"}
    assert found.with_plan("other.json").options == {"plan": "other.json"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NETSUM_CONTROLLER", "127.0.0.1"),
        ("NETSUM_CONTROLLER", "host:99999"),
        ("NETSUM_CONTROLLER", "127.0.0.1:7700,127.0.0.2"),
        ("NETSUM_CONTROLLER", "127.0.0.1:7700,"),
        ("NETSUM_PROTOCOL", "../x"),
        ("NETSUM_COLLECTIVES", "barrier"),
        ("NETSUM_MAX_TREES", "0"),
        ("NETSUM_RELEASE_FRACTION", "nan"),
        ("NETSUM_RELEASE_FRACTION", "1.5"),
        ("NETSUM_CONGESTION", "cubic"),
        ("NETSUM_MIN_BYTES", "4K"),
        ("NETSUM_SHARED_MEMORY", "1"),
        ("NETSUM_NETWORK", "rdma"),
        ("NETSUM_ORDER", "any"),
        ("NETSUM_PLAN_SHARES", "fastest"),
        ("NETSUM_TORCH_SHAPE", "round"),
    ],
)
def test_a_bad_value_is_named(variable, value):
    with pytest.raises(SettingError, match=f"{variable}={value}: "):
        Settings.from_environment({variable: value})
