"""What a posterior and a plan show in Jupyter: HTML, and plots by matplotlib.

Nothing here is imported before it is asked for.
"""
