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
            "NETSUM_MAX_TREES": "2",
            "NETSUM_RELEASE_FRACTION": "0.5",
            "NETSUM_CONGESTION": "per-branch",
            "NETSUM_MIN_BYTES": "0",
            "NETSUM_TORCH_SHAPE": "backend",
        }
    )
    assert (found.controller, found.host, found.torch_shape) == ("127.77.0.1:7700", "h2", "backend")
    assert found.options == {
        "protocol": "panama",
        "max_trees": "2",
        "release_fraction": "0.5",
        "congestion": "per-branch",
        "min_bytes": "0",
    }
    assert found.host_path_only().controller is None


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NETSUM_CONTROLLER", "127.0.0.1"),
        ("NETSUM_CONTROLLER", "host:99999"),
        ("NETSUM_PROTOCOL", "../x"),
        ("NETSUM_MAX_TREES", "0"),
        ("NETSUM_RELEASE_FRACTION", "nan"),
        ("NETSUM_RELEASE_FRACTION", "1.5"),
        ("NETSUM_CONGESTION", "cubic"),
        ("NETSUM_MIN_BYTES", "4K"),
        ("NETSUM_SHARED_MEMORY", "1"),
        ("NETSUM_NETWORK", "rdma"),
        ("NETSUM_TORCH_SHAPE", "round"),
    ],
)
def test_a_bad_value_is_named(variable, value):
    with pytest.raises(SettingError, match=f"{variable}={value}: "):
        Settings.from_environment({variable: value})
