"""The single-level reformulation as pure functions of plain values (methods: `docs/methods/salvf.md`)."""
