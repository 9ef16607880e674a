// Publishes one task safely and waits for its result: `go run . order-1001`.
//
// Exit code 0: it succeeded, its result is on stdout. 1: it is dead, discarded or cancelled. 2: nobody took it. 3: nobody knows yet.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	taskType    = "order.ship"
	tries       = 5
	confirmTime = 10 * time.Second
	waitTime    = 60 * time.Second
)

type task struct {
	ID      string         `json:"id"`
	Type    string         `json:"type"`
	Payload map[string]any `json:"payload"`
	ReplyTo string         `json:"reply_to"`
}

type reply struct {
	Status string          `json:"status"`
	Result json.RawMessage `json:"result"`
}

var errUnroutable = errors.New("no queue takes " + taskType + ": is redeliver set up in this virtual host?")

// submit returns where the result will come, once the broker has the task.
func submit(url, id string) (<-chan amqp.Delivery, error) {
	connection, err := amqp.DialConfig(url, amqp.Config{Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(confirmTime)})
	if err != nil {
		return nil, err
	}
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, err
	}
	queue, err := channel.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		return nil, err
	}
	replies, err := channel.Consume(queue.Name, "", true, true, false, false, nil)
	if err != nil {
		return nil, err
	}
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	body, err := json.Marshal(task{id, taskType, map[string]any{"order": id}, queue.Name})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTime)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "redeliver.submit", taskType, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, ContentType: "application/json", MessageId: id, Body: body,
	})
	if err != nil {
		return nil, err
	}
	confirmed := make(chan bool, 1)
	go func() { confirmed <- confirm.Wait() }()
	select {
	case ok := <-confirmed:
		// A returned message is confirmed too, and its return comes before.
		select {
		case <-returns:
			return nil, errUnroutable
		default:
		}
		if !ok {
			return nil, errors.New("refused by the broker")
		}
		return replies, nil
	case <-ctx.Done():
		connection.Close()
		return nil, ctx.Err()
	}
}

func main() {
	url, id := os.Getenv("AMQP_URL"), "order-1001"
	if url == "" {
		url = "amqp://guest:guest@localhost:5672/%2f"
	}
	if len(os.Args) > 1 {
		id = os.Args[1]
	}
	var replies <-chan amqp.Delivery
	for attempt := 0; replies == nil; attempt++ {
		var err error
		replies, err = submit(url, id)
		if errors.Is(err, errUnroutable) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if err != nil {
			// Not confirmed is not the same as not taken. The same id again makes it one task either way.
			fmt.Fprintf(os.Stderr, "not confirmed (%v), once more\n", err)
			if attempt == tries-1 {
				os.Exit(3)
			}
			time.Sleep(time.Second << attempt)
		}
	}
	late := time.After(waitTime)
	for {
		select {
		case delivery, open := <-replies:
			if !open {
				fmt.Fprintln(os.Stderr, "the connection is gone; the task is accepted, ask again with the same id")
				os.Exit(3)
			}
			if delivery.CorrelationId != id {
				continue
			}
			var told reply
			if err := json.Unmarshal(delivery.Body, &told); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(3)
			}
			fmt.Println(string(told.Result))
			if told.Status != "succeeded" {
				os.Exit(1)
			}
			return
		case <-late:
			fmt.Fprintln(os.Stderr, id, "is accepted and has not ended; ask again with the same id")
			os.Exit(3)
		}
	}
}
