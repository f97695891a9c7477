"""A controller's view of switches, links, jobs and ranks, as Prometheus metrics.

What switches and ranks count reaches the controller once a second. `netsum metrics` asks it at each scrape, with the
certificate of a viewer. Pages of switches (`--metrics`) have more of each switch.
"""
