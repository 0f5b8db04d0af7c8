PRAGMA application_id = 1146309709;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE assembly (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        size      INTEGER NOT NULL,
        gathered  INTEGER NOT NULL,   -- sum of the lengths of its rows in `piece`
        PRIMARY KEY (dataset, folder, name, version, size)
    ) STRICT, WITHOUT ROWID
    ;
INSERT INTO "assembly" VALUES(1,X'',X'6C61726765',3,8,4);
CREATE TABLE chunk (
        number            INTEGER PRIMARY KEY AUTOINCREMENT,  -- identifies the chunk in the tables below
        dataset           INTEGER NOT NULL,
        chunk_id          BLOB NOT NULL,                      -- 16 bytes
        updated_ns        INTEGER NOT NULL,                   -- when it was applied, or `deleted` last changed
        header_length     INTEGER NOT NULL,                   -- bytes
        payload_length    INTEGER NOT NULL,                   -- bytes
        payload_digest    BLOB NOT NULL,                      -- 32 bytes
        entries           INTEGER NOT NULL,
        deleted_entries   INTEGER NOT NULL DEFAULT 0,         -- bits set in `deleted`
        deleted           BLOB NOT NULL,                      -- bit i % 8 of byte i / 8: entry i is dead
        UNIQUE (dataset, chunk_id)
    ) STRICT
    ;
INSERT INTO "chunk" VALUES(1,1,X'6553F100000000000000000000000001',1700000000000000001,506,14,X'2624C49F59C86620A536F692560CA17EF2A84D44ED598E72AAC4F4B201BE1FC7',5,1,X'02');
INSERT INTO "chunk" VALUES(2,1,X'6553F100000000000000000000000002',1700000000000000001,371,11,X'1908C5D39A036D2445AE4CEA9B9B4B378E863A2BF735628C0D307C6E0158CD85',3,0,X'00');
CREATE TABLE dataset (
        number        INTEGER PRIMARY KEY AUTOINCREMENT,  -- identifies the dataset in other tables; never reused
        dataset_id    BLOB NOT NULL UNIQUE,               -- 16 bytes
        name          TEXT NOT NULL UNIQUE,               -- with a slash: a copy that a rebuild makes (switch.py)
        generation    INTEGER NOT NULL DEFAULT 0,         -- chunks applied for the first time, ever
        updated_ns    INTEGER NOT NULL DEFAULT 0,         -- when the generation last rose, since 1970; 0: never
        files         INTEGER NOT NULL DEFAULT 0,         -- live entries that are files
        total_bytes   INTEGER NOT NULL DEFAULT 0,         -- their sizes together
        chunks        INTEGER NOT NULL DEFAULT 0,         -- rows in `chunk`
        last_version  INTEGER NOT NULL DEFAULT 0          -- largest version reserved or applied
    ) STRICT
    ;
INSERT INTO "dataset" VALUES(1,X'000102030405060708090A0B0C0D0E0F','pets',2,1700000000000000001,2,12,2,3);
CREATE TABLE entry (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        op        INTEGER NOT NULL,   -- chunk.format.Op, never DELETE
        mode      INTEGER NOT NULL,
        mtime_ns  INTEGER NOT NULL,
        size      INTEGER NOT NULL,   -- bytes; 0 unless it is a file
        chunk     INTEGER,            -- chunk.number; NULL: a file that spans chunks, see `piece`
        entry     INTEGER,            -- which entry of that chunk; NULL with `chunk`
        offset    INTEGER NOT NULL,   -- of a file's bytes in the payload; else 0
        digest_a  INTEGER NOT NULL,   -- of a file's bytes, the first 8 bytes as a signed little-endian number; else 0
        digest_b  INTEGER NOT NULL,   -- the last 8 bytes
        target    BLOB,               -- of a symbolic link; else NULL
        PRIMARY KEY (dataset, folder, name)
    ) STRICT, WITHOUT ROWID
    ;
INSERT INTO "entry" VALUES(1,X'',X'',1,2,420,5,0,1,0,0,0,0,NULL);
INSERT INTO "entry" VALUES(1,X'',X'656D707479',1,2,420,5,0,1,4,0,0,0,NULL);
INSERT INTO "entry" VALUES(1,X'',X'6C',1,3,420,5,0,1,3,0,0,0,X'642F61');
INSERT INTO "entry" VALUES(1,X'64',X'61',2,1,420,5,7,2,0,0,-7505870403622147191,-792930370236805310,NULL);
INSERT INTO "entry" VALUES(1,X'642F65',X'62',1,1,420,5,5,1,2,9,-4594416802105700606,1433619923530529327,NULL);
CREATE TABLE folder (
        dataset  INTEGER NOT NULL,
        parent   BLOB NOT NULL,
        name     BLOB NOT NULL,
        members  INTEGER NOT NULL,    -- live entries and rows of this table directly in it; never 0
        PRIMARY KEY (dataset, parent, name)
    ) STRICT, WITHOUT ROWID
    ;
INSERT INTO "folder" VALUES(1,X'',X'64',2);
INSERT INTO "folder" VALUES(1,X'64',X'65',1);
CREATE TABLE note (
        dataset  INTEGER NOT NULL,
        name     TEXT NOT NULL,
        value    BLOB NOT NULL,
        PRIMARY KEY (dataset, name)
    ) STRICT, WITHOUT ROWID
    ;
CREATE TABLE piece (
        dataset   INTEGER NOT NULL,
        folder    BLOB NOT NULL,
        name      BLOB NOT NULL,
        version   INTEGER NOT NULL,
        size      INTEGER NOT NULL,   -- of the whole file
        place     INTEGER NOT NULL,   -- of the extent in the file
        length    INTEGER NOT NULL,
        chunk     INTEGER NOT NULL,
        entry     INTEGER NOT NULL,
        offset    INTEGER NOT NULL,
        digest_a  INTEGER NOT NULL,
        digest_b  INTEGER NOT NULL,
        mode      INTEGER NOT NULL,
        mtime_ns  INTEGER NOT NULL,
        in_use    INTEGER NOT NULL DEFAULT 0,  -- 1: the live file is read from this extent
        PRIMARY KEY (dataset, folder, name, version, size, place, length)
    ) STRICT, WITHOUT ROWID
    ;
INSERT INTO "piece" VALUES(1,X'',X'6C61726765',3,8,0,4,2,2,7,-8903759438552854742,7975919878475722109,420,5,0);
CREATE TABLE tombstone (
        dataset  INTEGER NOT NULL,
        folder   BLOB NOT NULL,
        name     BLOB NOT NULL,
        version  INTEGER NOT NULL,
        chunk    INTEGER NOT NULL,
        entry    INTEGER NOT NULL,
        PRIMARY KEY (dataset, folder, name)
    ) STRICT, WITHOUT ROWID
    ;
INSERT INTO "tombstone" VALUES(1,X'',X'676F6E65',2,2,1);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('dataset',1);
INSERT INTO "sqlite_sequence" VALUES('chunk',2);
COMMIT;
