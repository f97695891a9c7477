"""The demo: LeNet-5 trained through a local fabric, compared with the same training on Gloo.

`train` is the script of the workers; `session` runs it on a fabric and collects results; `ring` computes what a ring
would have sent; `result` summarizes the numbers; `report` draws them.
"""
