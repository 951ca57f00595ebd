package store

import "cmp"

// Candidate is a session that may take placements.
type Candidate struct {
	SessionID string
	ClientID  string
	Headroom  float64
}

// Dice are the random numbers of one choice, each in [0, 2^31). They are drawn
// by the caller so that a choice can be repeated.
type Dice [3]uint32

// Compare orders candidates as Choose wants them: by headroom, then by session
// id, ascending. It is the order of a Redis sorted set.
func Compare(a, b Candidate) int {
	return cmp.Or(cmp.Compare(a.Headroom, b.Headroom), cmp.Compare(a.SessionID, b.SessionID))
}

// Choose picks the owner of a first placement among candidates (protocol §9),
// which must be sorted by Compare, must not hold the excluded client, and must
// not be empty. It returns an index.
//
// The preferred session wins while its headroom times factor is at least the
// best candidate's. Otherwise two different candidates are drawn, and the one
// with more headroom wins; a tie is broken by the dice.
func Choose(candidates []Candidate, preferred string, factor float64, dice Dice) int {
	if i, ok := Preferred(candidates, preferred, factor); ok {
		return i
	}
	n := len(candidates)
	if n == 1 {
		return 0
	}
	i := int(dice[0]) % n
	j := int(dice[1]) % (n - 1)
	if j >= i {
		j++
	}
	a, b := candidates[i].Headroom, candidates[j].Headroom
	if a > b || a == b && dice[2]%2 == 0 {
		return i
	}
	return j
}

// Preferred returns the index of the preferred session if it is the one that Choose
// picks because it is preferred.
func Preferred(candidates []Candidate, preferred string, factor float64) (i int, ok bool) {
	best := candidates[len(candidates)-1].Headroom
	for i, c := range candidates {
		if c.SessionID == preferred && c.Headroom*factor >= best {
			return i, true
		}
	}
	return 0, false
}
