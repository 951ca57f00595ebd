-- namespaces lists the namespaces that are remembered.
--
-- KEYS  namespaces
-- Answer: {namespace…}

return call('SMEMBERS', KEYS[1])
