"""What auto_LiRPA 0.3 needs from current torch and numpy, and how its graphs are built on them."""
