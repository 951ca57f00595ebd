package pinboard

// standardLimits returns the defaults.
func standardLimits() *Limits {
	var l Limits
	l.fill(nil)
	return &l
}
