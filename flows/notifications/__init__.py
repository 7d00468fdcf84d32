"""Tells people how unattended runs went: `config` (whom, and of what), `notices` (one line and
links), `channels` (webhook, e-mail, command), `watch` (what happens to a run)."""
