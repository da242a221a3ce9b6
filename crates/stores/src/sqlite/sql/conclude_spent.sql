UPDATE oncebox_delivery SET state = 'ready', due_at = ?3, deaths = 0, started = 0, holder = NULL,
    code = ?5, reason = ?6,
    history = json_insert(
        CASE WHEN json_array_length(history) < ?7 THEN history ELSE json_remove(history, '$[0]') END,
        '$[#]', json_object('attempt', attempts, 'at', ?4, 'code', ?5, 'reason', ?6))
WHERE number = ?1 AND fence = ?2 AND state = 'leased';
