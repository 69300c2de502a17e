# An application of Rails that answers all questions, for the tests. It verifies signatures by the
# specification of Standard Webhooks, without a gem.

require "action_controller/railtie"
require "base64"
require "openssl"

SECRET = Base64.decode64(ENV.fetch("HOOK_SECRET").delete_prefix("whsec_"))
SEEN = Hash.new(0)

class App < Rails::Application
  config.load_defaults 6.1
  config.eager_load = false
  config.secret_key_base = "x" * 64
  config.hosts.clear
  config.logger = Logger.new(nil)
  config.session_store :cookie_store, key: "_app_session"
  config.action_dispatch.show_exceptions = true
end
App.initialize!

class PagesController < ActionController::Base
  def login
    session[:user] = params[:name]
    head :ok
  end

  def seen = render(json: SEEN)
end

class QuestionsController < ActionController::Base
  skip_forgery_protection # the signature takes its place
  before_action :verify

  def connect
    user = session[:user]
    return render(json: { reason: "please log in" }, status: 401) unless user

    answer = { user: user, claims: { staff: user == "ada" } }
    answer[:cache_for] = 60 if @ask["params"].key?("cache")
    render json: answer
  end

  def join
    return render(json: { reason: "private" }, status: 403) if @ask["topic"] == "rooms:private"

    role = @ask["claims"]["staff"] ? "owner" : "guest"
    render json: { reply: { title: @ask["topic"] }, assigns: { role: role } }
  end

  def message
    body = @ask["payload"]["body"]
    return render(json: { reason: "be polite" }, status: 403) if body == "rude"
    return render(json: { broadcast: false, reply: { only: "you" } }) if body == "quiet"

    payload = { from: @ask["user"], role: @ask["assigns"]["role"], body: body }
    notice = { topic: @ask["topic"], event: "notice", payload: { from: "the application" } }
    render json: { payload: payload, reply: { stored: 1 }, messages: body == "twice" ? [notice] : [] }
  end

  private

  def verify
    id, time, sent = %w[id timestamp signature].map { |name| request.headers["webhook-#{name}"].to_s }
    digest = OpenSSL::HMAC.digest("SHA256", SECRET, "#{id}.#{time}.#{request.raw_post}")
    own = "v1,#{Base64.strict_encode64(digest)}"
    is_signed = sent.split.any? { |one| ActiveSupport::SecurityUtils.secure_compare(one, own) }
    return head(:bad_request) unless is_signed && (Time.now.to_i - time.to_i).abs < 300

    SEEN[action_name] += 1
    @ask = JSON.parse(request.raw_post)["data"]
  end
end

# As of somebody who has forgotten to skip it.
class ProtectedController < ActionController::Base
  protect_from_forgery with: :exception

  def connect = head(:ok)
end

App.routes.draw do
  get "login/:name" => "pages#login"
  get "seen" => "pages#seen"
  %w[connect join message].each { |name| post "simurgh/#{name}" => "questions##{name}" }
  post "protected/connect" => "protected#connect"
end
run App
