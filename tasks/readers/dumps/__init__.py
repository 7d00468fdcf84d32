"""Reads files of many documents whose text is extracted later: dumps of wikis, and mailboxes."""
