"""What the commands of `echo-hub` do; `echo_hub.cli` parses for them."""
