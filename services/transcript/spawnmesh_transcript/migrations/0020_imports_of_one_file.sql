-- What an import has of its file, so that nobody goes on with another one.

-- line_chain is the hash of the file's first chained_byte_count bytes: the contract says how it is made. Replicas of the version before count bytes and chain none: where the two
-- counts differ, nobody knows what the import has.
alter table imports
    add column line_chain         bytea  not null default decode(repeat('00', 32), 'hex'),
    add column chained_byte_count bigint not null default 0;
