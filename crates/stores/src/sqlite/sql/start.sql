UPDATE oncebox_delivery SET attempts = attempts + NOT started, started = 1
WHERE number IN (SELECT json_extract(value, '$[0]') FROM json_each(?1)) AND state = 'leased'
    AND (number, fence) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?1))
RETURNING number, fence;
