"""Schedules as pictures: where ranks lie on the page, and what is drawn between them, as SVG."""
