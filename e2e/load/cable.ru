# A chat of Action Cable, for the tests of `simurgh load`.

require "rails"
require "action_cable"
require "action_cable/engine"

class Connection < ActionCable::Connection::Base; end

class ChatChannel < ActionCable::Channel::Base
  def subscribed
    return reject if params[:room] == "private"

    stream_from "chat:#{params[:room]}"
  end

  def say(data)
    ActionCable.server.broadcast("chat:#{params[:room]}", { body: data["body"] })
  end
end

ActionCable.server.config.tap do |config|
  config.cable = { "adapter" => "async" }
  config.connection_class = -> { Connection }
  config.disable_request_forgery_protection = true
  config.logger = Logger.new(nil)
end

run ActionCable.server
