package store

import "context"

// AtHand is a context that has ended: whoever asks with it (Known) gets what is at
// hand, or an error, and never waits for anything. It costs less than a context with a
// bound, which has to be made for each question.
var AtHand = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
