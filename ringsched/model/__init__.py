"""What a schedule costs on its links."""
