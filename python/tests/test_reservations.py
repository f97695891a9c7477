"""Addresses reserved by processes: none is given twice, and none stays reserved after its process."""

import os

import pytest
from processes import Latch

from netsum.fabric.builtin import _is_free, demo_description, free_block
from netsum.fabric.errors import FabricError
from netsum.fabric.reservations import LoopbackBlock, free_port, reserve, reserved_port


def test_a_name_has_one_holder_until_it_lets_go():
    name = f"test-{os.getpid()}"
    holder = reserve(name)
    assert holder is not None and reserve(name) is None
    holder.close()
    again = reserve(name)
    assert again is not None
    again.close()


def test_a_name_is_free_when_its_process_has_ended():
    name, reserved = f"test-{os.getpid()}-child", Latch()
    child = os.fork()
    if child == 0:
        _holder = reserve(name)
        reserved.set()
        os.kill(os.getpid(), 19)
    reserved.wait()
    assert reserve(name) is None
    os.kill(child, 9)
    os.waitpid(child, 0)
    free = reserve(name)
    assert free is not None
    free.close()


def test_ports_are_given_once():
    ports = [free_port() for _ in range(20)]
    with reserved_port() as one, reserved_port() as other:
        assert len({*ports, one, other}) == 22


def test_fabrics_that_begin_at_once_have_blocks_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = demo_description(), demo_description()
    assert first.controller != second.controller and first.name != second.name


def test_a_block_in_use_is_left_out(block):
    with pytest.raises(FabricError, match=rf"127\.{block}\.0\.0/16 is free; stop other local fabrics"):
        free_block([block])
    assert LoopbackBlock.take(block) is None


def test_a_block_where_a_daemon_listens_is_left_out(fabric):
    number = int(fabric.description.controller.split(".")[1])
    # As after `netsum fabric up`: the command has ended, so nothing is reserved, and daemons use the addresses.
    assert not _is_free(number)
