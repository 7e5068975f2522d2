"""The warm fallback of a line: its guard (pure), its session, its parity gate."""
