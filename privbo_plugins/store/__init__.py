"""What must survive a crash, and the one way in which anything leaves it."""
