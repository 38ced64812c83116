\set key random(1, 9000000000000)
insert into baseline_jobs values (
    (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
        || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid,
    1, 'place-order', 'default', 0, 'pending',
    '{"order": 4711, "lines": [{"article": "4-229-07", "count": 3}, {"article": "4-311-12", "count": 1}], "customer": "7", "address": "Solegatan 12, 111 22 Stockholm", "note": "leave at the door if nobody is home"}',
    '{"customer": "7"}', sha256(int8send(:key)), 'order:' || :key, clock_timestamp(), clock_timestamp(), null
);
