-- namespaces lists the namespaces that were ever registered.
--
-- KEYS  namespaces
-- Answer: {namespace…}

return call('SMEMBERS', KEYS[1])
