-- What is superseded behind a summary is counted when it is read: entries may be marked after the summary was made, also those that it covers. The column is
-- not written any more; it stays for replicas of the version before, and goes in a later release.
alter table summaries alter column covered_superseded_count set default 0;
