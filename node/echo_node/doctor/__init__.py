"""`echo-node doctor`: what could keep this machine from joining, and what to do about it.

One file a check. Each gathers facts, which touches the machine and the network, and judges them,
which is pure. Nothing is changed, and no check stops another: what a check cannot find out is a
finding.
"""
