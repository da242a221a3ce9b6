-- One that may be passed leaves its lane for good; otherwise it would keep back what comes later.
UPDATE oncebox_delivery SET state = 'dead', ended_at = ?3, started = 0, holder = NULL,
    code = ?4, reason = ?5, attempts = attempts - (started AND NOT ?7),
    lane = CASE WHEN ?8 THEN NULL ELSE lane END,
    history = json_insert(
        CASE WHEN json_array_length(history) < ?6 THEN history ELSE json_remove(history, '$[0]') END,
        '$[#]', json_object('attempt', attempts, 'at', ?3, 'code', ?4, 'reason', ?5))
WHERE number = ?1 AND fence = ?2 AND state = 'leased';
