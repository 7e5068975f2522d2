"""Faults injected into the real appliance under load, and what each cost: `takt sim nemesis`."""
