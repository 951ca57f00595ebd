-- superseded reads who displaced a session.
--
-- KEYS  superseded
-- Answer: {} if nobody did, or it is forgotten, else {epoch, clientId}.

local epoch, client = string.match(call('GET', KEYS[1]) or '', '^(%d+) (.*)$')
return epoch and {epoch, client} or {}
