"""The Helm chart: its values, what it renders, and a rehearsal of what it would start."""
