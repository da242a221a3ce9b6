SELECT d.number, d.fence, d.handler, m.channel, d.key_source, d.key_id, d.lane, d.attempts, d.deaths,
    d.generation, d.started, m.received_at, m.attributes, m.payload
FROM json_each(?1) AS taken
CROSS JOIN oncebox_delivery AS d ON d.number = taken.value
CROSS JOIN oncebox_message AS m ON m.number = d.message
ORDER BY taken.key;
