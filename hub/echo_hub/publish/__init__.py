"""A version becomes an artifact that every node has, and how it got there."""
