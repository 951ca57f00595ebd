package wire

// Registered answers a registration (protocol §2).
type Registered struct {
	SessionID   string `json:"sessionId"`
	ExpiresInMs int64  `json:"expiresInMs"`
	Draining    bool   `json:"draining"`
	// DrainDeadline is in seconds from now, nil without a deadline.
	DrainDeadline *float64 `json:"drainDeadline,omitempty"`
	Duplicates    []Ref    `json:"duplicates,omitempty"`
	// Epochs are placement epochs in decimal digits, by namespace and id.
	Epochs map[string]map[string]string `json:"epochs,omitempty"`
}

// Beat answers a heartbeat (protocol §2).
type Beat struct {
	ExpiresInMs   int64     `json:"expiresInMs"`
	Draining      bool      `json:"draining"`
	DrainDeadline *float64  `json:"drainDeadline,omitempty"`
	Degraded      bool      `json:"degraded,omitempty"`
	Messages      []Message `json:"messages,omitempty"`
}

// MessageWindDown is the one type of control message (protocol §2).
const MessageWindDown = "wind_down"

// Message is a control message to a worker (protocol §2).
type Message struct {
	MsgID     string `json:"msgId"`
	Type      string `json:"type"`
	Namespace string `json:"ns"`
	ID        string `json:"id"`
	// Deadline is in seconds from now; nil revokes.
	Deadline *float64 `json:"deadline"`
}

// Released answers a release and a deregistration.
type Released struct {
	Released int `json:"released"`
}

// Error is the body of every error of pinboard's own (protocol, head).
type Error struct {
	Error string `json:"error"`
	// Reregister and Superseded tell a worker what to do after a 409.
	Reregister bool `json:"reregister,omitempty"`
	Superseded bool `json:"superseded,omitempty"`
}

// What the policy of the data plane says in an Error, and no call of the registry
// does: a worker that gets it has called a wrong path.
const (
	SaidUnauthenticated = "authentication required"
	SaidForbidden       = "not allowed"
)

// Detail is the body of a worker's own error.
type Detail struct {
	Detail string `json:"detail"`
}

// ChallengeAnswer is the body of a worker's challenge route (protocol §3).
type ChallengeAnswer struct {
	Value string `json:"value"`
}
