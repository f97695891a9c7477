"""Other programs' view of netsum: the dissector for Wireshark, keys for it, and captures by Wireshark's dumpcap."""
