"""Addresses and outcomes, made from hw/rtl/registers.toml by hw/tools/registers.py."""

ID = 0x00000
VERSION = 0x00004
SHAPE = 0x00008
MEMORY = 0x0000C
STATUS = 0x00010
CLEAR = 0x00014
OUTCOMES = 0x00080
LEASES = 0x01000
CHILDREN = 0x10000
TEMPLATES = 0x20000
WORD_JOB = 0
WORD_KEY = 1
WORD_WINDOW = 2
WORD_RING = 3
WORD_ELEMENTS = 4
WORD_VALID = 5
WORD_MEMBERS = 8
WORD_PARENT = 12
DROPS = {
    "contribution": None,
    "released": None,
    "result": None,
    "answered": "duplicate",
    "waiting": "duplicate",
    "mismatch_told": "mismatch",
    "duplicate": "duplicate",
    "mismatch": "mismatch",
    "unexpected": "unexpected",
    "too_old": "too_old",
    "beyond_window": "beyond_window",
    "too_large": "too_large",
    "wrong_direction": "wrong_direction",
    "not_a_neighbour": "not_a_neighbour",
    "future_epoch": "future_epoch",
    "stale_epoch": "stale_epoch",
    "no_lease": "no_lease",
    "payload_length": "payload_length",
    "empty_fragment": "empty_fragment",
    "reserved_field": "reserved_field",
    "broken_frame": "truncated_header",
}
"""The switch's reason for each outcome, in counter order; None if the packet was taken."""
