"""Tools, the ReAct loop and the trajectory it leaves."""
