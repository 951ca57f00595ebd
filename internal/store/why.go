package store

// Why is why an id was placed where it is. It is kept in the row, as one letter.
// The zero value is that of a row that does not tell.
type Why struct {
	Cause  Cause
	Choice Choice // "" for Reclaimed
}

// Cause is why an id had to be placed.
type Cause string

// The causes.
const (
	// New: nobody had the id, or nothing is known any more of who had it: rows of
	// owners that have ended are swept after a while.
	New Cause = "new"
	// Failover: the owner's session has ended, by its lease or because it was
	// deregistered.
	Failover Cause = "failover"
	// AfterRefusal: the owner would not serve the id (protocol §5).
	AfterRefusal Cause = "refused"
	// Reclaimed: a worker listed the id when it registered, and nobody live had
	// it.
	Reclaimed Cause = "reclaimed"
)

// Choice is how the worker was chosen (protocol §9).
type Choice string

// The choices.
const (
	ByCaller     Choice = "caller"     // the calling instance's own worker
	ByAffinity   Choice = "affinity"   // the one that the affinity key prefers
	ByTwoChoices Choice = "twoChoices" // the better of two at random, or the only one
)

// letters of the choices for a new id. After a refusal it is the next letter, and
// the capital one after a failover.
var letters = map[Choice]byte{ByCaller: 'c', ByAffinity: 'a', ByTwoChoices: 't'}

const reclaimed = "r"

// Letter returns the choice as rows tell it, of the cause New.
func (c Choice) Letter() string { return string(rune(letters[c])) }

// ParseWhy reads a row's letter. One that is not known is the zero Why.
func ParseWhy(letter string) Why {
	if letter == reclaimed {
		return Why{Cause: Reclaimed}
	}
	for choice, l := range letters {
		switch letter {
		case string(rune(l)):
			return Why{New, choice}
		case string(rune(l + 1)):
			return Why{AfterRefusal, choice}
		case string(rune(l - 'a' + 'A')):
			return Why{Failover, choice}
		}
	}
	return Why{}
}
