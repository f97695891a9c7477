"""The demo: LeNet-5 trained through a local fabric, beside the same training on Gloo.

`train` is the script that the workers run; `session` runs it on a fabric and watches; `ring` counts what a ring would
have sent; `result` puts the numbers together; `report` draws them.
"""
