SELECT scope, attributes, payload FROM oncebox_message WHERE number = ?1;
